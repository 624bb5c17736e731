"""Each file of conf/dataset loads a tiny copy of its dataset, in the layout that dataset has."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from PIL import Image

import fedclust.settings.composition  # noqa: F401  # what dataset/text.yaml interpolates
from fedclust.data.dataset import Dataset
from fedclust.data.loading import make_builder

CONF = Path(__file__).parents[3] / "conf"
NAMES = sorted(path.stem for path in (CONF / "dataset").glob("*.yaml"))


def encode(height: int, width: int, colour: bool, kind: str = "png") -> bytes:
    shape = (height, width, 3) if colour else (height, width)
    buffer = io.BytesIO()
    Image.fromarray(np.full(shape, 128, dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def hub_images(
    size: int, colour: bool, columns: dict, image: str = "image", parts: str = "train test"
) -> Callable[[Path], list[str]]:
    """Parquet with the hub's Image feature."""

    def make(folder: Path) -> list[str]:
        cells = [{"bytes": encode(size, size, colour), "path": "x.png"}] * len(next(iter(columns.values())))
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({image: pa.array(cells, kind), **columns})
        for part in parts.split():
            pq.write_table(table, folder / f"{part}.parquet")
        return []

    return make


def frames(*overrides: str, suffix: str = ".parquet", **parts: dict) -> Callable[[Path], list[str]]:
    """Tables, one file per part."""

    def make(folder: Path) -> list[str]:
        for part, columns in parts.items():
            frame = pd.DataFrame(columns)
            path = folder / f"{part}{suffix}"
            frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
        return list(overrides)

    return make


def files(*overrides: str, size: tuple[int, int] = (40, 50), **content: str) -> Callable[[Path], list[str]]:
    """Image files, given as names in `content["images"]`, and text files."""

    def make(folder: Path) -> list[str]:
        for name in content["images"].split():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(encode(*size, colour=True, kind="jpeg"))
        for name, text in content.items():
            if name != "images":
                (folder / f"{name}.csv").write_text(text)
        return list(overrides)

    return make


BASES = "ACGT" * 15
ANIMALS = {"Count": range(13), "Species": list("abcdefghijklm")}
PATIENTS = {"age": [30, 40], "label": ["ill", "well"]}
ADULT = {"age": [30, 40], "workclass": ["Private", "?"], "income": ["<=50K", ">50K"]}
ACS = {name: [1.0, 2.0] for name in "AGEP COW SCHL MAR OCCP POBP RELP WKHP SEX RAC1P".split()}  # noqa: SIM905
NUMBERS = "age sex trestbps chol fbs thalach exang oldpeak"
HEART = {name: [0.0, 1.0] for name in NUMBERS.split()} | {
    **{"cp": ["cp1", "cp1"], "restecg": ["ecg0", "ecg0"], "disease": [0, 1], "center": ["va", "cleveland"]}
}
WOMEN = {"district": [1, 2], "use": ["N", "Y"], "age": [1.0, 2.0], "livch": ["0", "0"], "urban": ["Y", "Y"]}
STUDENTS = {"score": [0, 10], "lea": [1, 2], "age": [1, 2], "gcsescore": [3.5, 7.0], "gender": ["F", "F"]}
REVIEWS = ["pet supplies", "beauty", "baby products", "toys games", "health personal care", "grocery"]

LAYOUTS: dict[str, Callable[[Path], list[str]]] = {
    "mnist": hub_images(28, False, {"label": [0, 9]}),
    "fashion_mnist": hub_images(28, False, {"label": [0, 9]}),
    "cifar10": hub_images(32, True, {"label": [0, 9]}, image="img"),
    "cifar100": hub_images(32, True, {"fine_label": [0, 99], "coarse_label": [0, 19]}, image="img"),
    "emnist": hub_images(28, False, {"label": [0, 61]}),
    "emnist_balanced": hub_images(28, False, {"label": [0, 46]}),
    "femnist": hub_images(
        28, False, {"writer_id": ["f1", "f0"], "hsf_id": [0, 0], "character": [0, 61]}, parts="train"
    ),
    "imagenette": hub_images(160, True, {"label": [0, 9]}, parts="train validation"),
    "busi": files(
        images="benign/benign_1.jpg benign/benign_1_mask.jpg malignant/malignant_1.jpg normal/normal_1.jpg"
    ),
    "lunghist700": files(
        images="images/aca_bd_20x_1.jpg images/nor_40x_2.jpg images/scc_pd_20x_3.jpg", data="patient_id\n1\n"
    ),
    "landmarks_users_160k": files(
        images="train/0/1/2/012ab.jpg train/f/0/0/f00cd.jpg",
        federated_train="user_id,image_id,class\n7,012ab,0\n5,f00cd,2027\n",
        test="image_id,class\nf00cd,2027\n",
    ),
    "inaturalist_users_120k": files(
        images="train_val_images/Aves/Corvus/0a1b.jpg train_val_images/Plantae/Quercus/2c3d.jpg",
        federated_train_user_120k="user_id,image_id,class\n7,0a1b,0\n5,2c3d,1202\n",
        test="image_id,class\n0a1b,0\n",
    ),
    "adult": frames("dataset.input_shape=[3]", train=ADULT, test=ADULT),
    "acs_income": frames(train=ACS | {"STATE": ["CA", "NY"], "YEAR": [2018, 2018], "PINCP": [0.0, 1.0]}),
    "serengeti": frames("dataset.input_shape=[1]", suffix=".csv", consensus=ANIMALS),
    "sentiment140": frames(
        train={"text": ["Good day", "bad"], "sentiment": [4, 0]}, test={"text": ["so so"], "sentiment": [2]}
    ),
    "amazon_reviews": frames(
        suffix=".csv",
        train_40k={"Title": REVIEWS, "Text": REVIEWS, "Cat1": REVIEWS},
        val_10k={"Title": REVIEWS[:1], "Text": ["beauty"], "Cat1": REVIEWS[:1]},
        unlabeled_150k={"Text": ["?"]},
    ),
    "splice": frames(train={"sequence": [BASES] * 3, "name": ["a", "b", "c"], "label": ["EI", "IE", "N"]}),
    "genomic_reads": frames(
        train={"read": ["AC" * 75] * 2, "labels": ["01" * 75] * 2, "population": ["AFRI", "EURO"]}
    ),
    "image_folder": files("dataset.num_classes=2", images="robin/1.jpg wren/2.jpg"),
    "text": frames(suffix=".csv", reviews={"text": ["Good day", "bad"], "label": ["kind", "harsh"]}),
    "heart_disease": frames("dataset.input_shape=[10]", "dataset.sha256=null", suffix=".csv", heart=HEART),
    "contraception": frames("dataset.input_shape=[3]", "dataset.sha256=null", suffix=".csv", women=WOMEN),
    "chem97": frames(
        *("dataset.input_shape=[3]", "dataset.num_classes=2", "dataset.sha256=null"),
        suffix=".csv",
        students=STUDENTS,
    ),
    "csv": frames("dataset.num_classes=2", "dataset.input_shape=[1]", suffix=".csv", patients=PATIENTS),
}


def node(name: str, overrides: list[str]) -> dict:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose(overrides=[f"+dataset={name}", *overrides])
    container = OmegaConf.to_container(composed.dataset, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def load(name: str, folder: Path) -> Dataset:
    source = folder / "source"
    source.mkdir()
    overrides = [] if name == "digits" else [*LAYOUTS[name](source), f"dataset.path={source}"]
    return make_builder(node(name, overrides)).load(folder / "cache")


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_copy_loads_and_its_file_has_its_command(name: str, tmp_path: Path) -> None:
    data = load(name, tmp_path)
    assert data.name == name
    assert 0 < data.num_train <= len(data.inputs)
    assert len(data.class_names) == data.num_classes
    comment = (CONF / "dataset" / f"{name}.yaml").read_text().partition("\ndefaults:")[0]
    assert f"fedclust dataset={name}" in comment


def test_what_is_particular_to_a_dataset(tmp_path: Path) -> None:
    def loaded(name: str) -> Dataset:
        (tmp_path / name).mkdir()
        return load(name, tmp_path / name)

    imagenette = loaded("imagenette")  # its validation data is the test part
    assert (imagenette.num_train, len(imagenette.inputs)) == (2, 4)
    busi = loaded("busi")  # outlines are no ultrasound images
    assert (len(busi.inputs), busi.class_names) == (3, ("benign", "malignant", "normal"))
    assert loaded("lunghist700").class_names == ("aca", "nor", "scc")
    tweets = loaded("sentiment140")  # neutral ones are left out
    assert (tweets.labels.tolist(), tweets.class_names) == ([1, 0], ("negative", "positive"))
    reads = loaded("genomic_reads")
    assert reads.labels.shape == reads.inputs.shape == (2, 150)
    assert reads.labels[0, :4].tolist() == [0, 1, 0, 1]
    # Numbered by frequency; ACACA and CACAC occur equally often, and ACACA is first by name.
    assert reads.inputs[0, :4].tolist() == [0, 0, 1, 2]
    users = {"landmarks_users_160k": [1, 0, -1], "inaturalist_users_120k": [1, 0, -1], "femnist": [1, 0]}
    found = {name: loaded(name).natural.tolist() for name in users}  # type: ignore[union-attr]
    assert found == users
