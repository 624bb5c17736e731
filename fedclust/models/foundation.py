"""Foundation models from transformers as frozen encoders.

Source: FMCL, Section 3.2 (the encoder φ) and Section 4.4 (ViT-Tiny for Imagenette).
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import torch

from fedclust.models import options
from fedclust.models.encoders import state_digest, with_channels
from fedclust.models.pretrained import load_pretrained

__all__ = ["TransformersEncoder"]


class TransformersEncoder:
    """Any image or text model that transformers can load, frozen.

    Images go through the model's own processor, which resizes, rescales and normalises them as in the model's
    training; grey images are repeated to the number of channels that the model expects. For a model of images
    and text, such as CLIP, the image part is used. Tokens must come from the model's own tokeniser, not from
    a vocabulary built from the training data.

    Parameters
    ----------
    path
        Hub id, such as ``WinKawaks/vit-tiny-patch16-224``, or a local folder written by ``save_pretrained``
        with the model and its processor.
    pooling
        How a model's output vectors become one: ``"cls"`` uses the first position; ``"mean"`` the mean over
        positions (of a text without its padding, or of a feature map); ``"pooler"`` the model's own pooled
        output.
    tokenizer
        The pretrained tokeniser of the dataset's tokens; None for images and for a vocabulary built from the
        training data.

    Raises
    ------
    ValueError
        If `pooling` is unknown or not supported by the model, or nothing can be loaded from `path`.
    """

    def __init__(
        self, path: str, pooling: Literal["cls", "mean", "pooler"], tokenizer: str | None = None
    ) -> None:
        from transformers import AutoImageProcessor, AutoModel

        options.TransformersEncoder(path, pooling, tokenizer)
        loaded, report = load_pretrained(
            AutoModel.from_pretrained, path, "encoder transformers", output_loading_info=True
        )
        # Weights missing from the file are random; a classifier's file lacks those of the pooler.
        missing = {name.removeprefix("vision_model.") for name in report["missing_keys"]}
        if pooling == "pooler" and any("pooler" in name for name in missing):
            raise ValueError(f"pooling must be cls or mean for {path}, which has no pooler, got pooler")
        model = getattr(loaded, "vision_model", loaded)
        # Half precision becomes float32: prototypes are means, and half precision is slow on the CPU.
        self._model: Any = model.float().requires_grad_(False).eval()
        self._processor: Any = None
        preprocessing = ""
        if model.main_input_name == "pixel_values":
            self._processor = load_pretrained(
                AutoImageProcessor.from_pretrained, path, "encoder transformers (image processor)"
            )
            preprocessing = self._processor.to_json_string()
        self._path, self._pooling, self._tokenizer = path, pooling, tokenizer
        weights = {name: value for name, value in model.state_dict().items() if name not in missing}
        self.fingerprint = (
            f"transformers-{pooling}-{hashlib.sha256(preprocessing.encode()).hexdigest()[:8]}"
            f"-{state_digest(weights)}"
        )
        self.dimension = self._measure_dimension()

    @torch.inference_mode()
    def encode(
        self,
        inputs: torch.Tensor,
        mean: Sequence[float] = (),  # noqa: ARG002 - the processor has the statistics of the model's training
        std: Sequence[float] = (),  # noqa: ARG002
        device: str | torch.device = "cpu",
    ) -> torch.Tensor:
        """Embed a batch; see :meth:`~fedclust.models.encoders.Encoder.encode`."""
        self._model.to(device)
        if self._processor is not None:
            pixels = self.preprocess(inputs).to(device)
            return self._pool(self._model(pixel_values=pixels, return_dict=True), None)
        self._require_own_tokens(inputs)
        tokens = inputs.to(device)
        mask = self._attention_mask(tokens)
        return self._pool(self._model(input_ids=tokens, attention_mask=mask, return_dict=True), mask)

    def preprocess(self, images: torch.Tensor) -> torch.Tensor:
        """Convert uint8 images, (n, channels, height, width), to the model's input with its own processor.

        Raises
        ------
        ValueError
            If the inputs are not uint8 images with one channel or the number that the model expects.
        """
        if images.dtype != torch.uint8 or images.dim() != 4:
            raise ValueError(
                f"encoder transformers: {self._path} takes uint8 images, got {images.dtype} "
                f"of shape {tuple(images.shape)}"
            )
        images = with_channels(images, self._channels, "encoder transformers")
        arrays = list(images.cpu().numpy())
        processed = self._processor(images=arrays, return_tensors="pt", input_data_format="channels_first")
        pixels: torch.Tensor = processed["pixel_values"]
        return pixels

    @property
    def _channels(self) -> int:
        return int(getattr(self._model.config, "num_channels", 3))

    def _pool(self, outputs: Any, mask: torch.Tensor | None) -> torch.Tensor:
        hidden = outputs.last_hidden_state
        if self._pooling == "pooler":
            pooled = getattr(outputs, "pooler_output", None)
            if pooled is None:
                raise ValueError(
                    f"pooling must be cls or mean for {self._path}, which has no pooler, got pooler"
                )
        elif hidden.dim() == 4:  # a feature map, (n, d, height, width), has no first position
            if self._pooling == "cls":
                raise ValueError(
                    f"pooling must be mean or pooler for {self._path}, which has no class token, got cls"
                )
            pooled = hidden.mean(dim=(2, 3))
        elif self._pooling == "cls":
            pooled = hidden[:, 0]
        elif mask is None:
            pooled = hidden.mean(dim=1)
        else:
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
        return pooled.flatten(1).float()

    def _attention_mask(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = getattr(self._model.config, "pad_token_id", None)
        if padding is None:
            return torch.ones_like(tokens)
        mask = (tokens != padding).long()
        # A text of padding only would leave nothing to attend to.
        mask[:, 0] = 1
        return mask

    def _require_own_tokens(self, inputs: torch.Tensor) -> None:
        if inputs.dtype != torch.int64 or inputs.dim() != 2:
            raise ValueError(
                f"encoder transformers: {self._path} takes tokens, got {inputs.dtype} "
                f"of shape {tuple(inputs.shape)}"
            )
        if self._tokenizer != self._path:
            raise ValueError(
                f"encoder transformers: tokens must come from the tokeniser of {self._path}, got "
                f"{self._tokenizer or 'a vocabulary built from the training data'}; "
                f"set dataset.tokenizer={self._path}"
            )

    def _measure_dimension(self) -> int:
        # By a forward pass, since every model family names this size differently.
        if self._processor is not None:
            blank = torch.zeros(1, self._channels, 32, 32, dtype=torch.uint8)
            with torch.inference_mode():
                outputs = self._model(pixel_values=self.preprocess(blank), return_dict=True)
                return self._pool(outputs, None).shape[1]
        with torch.inference_mode():
            tokens = torch.zeros(1, 1, dtype=torch.int64)
            return self._pool(self._model(input_ids=tokens, return_dict=True), None).shape[1]
