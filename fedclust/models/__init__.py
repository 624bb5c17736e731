"""The networks that clients train, and the frozen encoders of FMCL.

Importing this package imports nothing large. Its `options` have the rules of every network and encoder.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.models.class_prototypes import ClassPrototypes, cached_prototypes, prototypes
    from fedclust.models.construction import Classifier, build, check_outputs, last_layer, reinitialised
    from fedclust.models.encoders import Encoder, build_encoder
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = [
    "ClassPrototypes",
    "Classifier",
    "Encoder",
    "build",
    "build_encoder",
    "cached_prototypes",
    "check_outputs",
    "last_layer",
    "prototypes",
    "reinitialised",
]
