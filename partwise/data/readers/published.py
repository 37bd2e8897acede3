"""The files of published data sets by name, known before any is read."""

from dataclasses import dataclass

# Of MNIST and those made after it: images and labels for training, images and labels for testing.
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

# Of CIFAR, in its binary and its python layout: how many images are in a file, and its md5.
CIFAR10 = {
    "data_batch_1.bin": (10_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
    "data_batch_2.bin": (10_000, "5ea93a67294ea407fff1d09f752e9692"),
    "data_batch_3.bin": (10_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
    "data_batch_4.bin": (10_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
    "data_batch_5.bin": (10_000, "53f37980c15c3d472c316c40844f3f0d"),
    "test_batch.bin": (10_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
}
CIFAR100 = {
    "train.bin": (50_000, "6172c7755cfe09b2fe270c85cebc1b15"),
    "test.bin": (10_000, "4499cfba6c016c1be1438163640a0898"),
}
CIFAR10_PYTHON = {
    "data_batch_1": (10_000, "c99cafc152244af753f735de768cd75f"),
    "data_batch_2": (10_000, "d4bba439e000b95fd0a9bffe97cbabec"),
    "data_batch_3": (10_000, "54ebc095f3ab1f0389bbae665268c751"),
    "data_batch_4": (10_000, "634d18415352ddfa80567beed471001a"),
    "data_batch_5": (10_000, "482c414d41f54cd18b22e5b47cb7c3cb"),
    "test_batch": (10_000, "40351d587109b95175f43aff81a1287e"),
}
CIFAR100_PYTHON = {
    "train": (50_000, "16019d7e3df5f24257cddd939b257f8d"),
    "test": (10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
}


@dataclass(frozen=True)
class DomainFolder:
    """What a published domain folder must hold, by the names of its folders."""

    domains: dict[str, tuple[str, ...]]  # the folders that a domain may be called
    classes: tuple[str, ...]


PACS = DomainFolder(
    {domain: (domain,) for domain in ("art_painting", "cartoon", "photo", "sketch")},
    ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
)
OFFICE_HOME_CLASSES = """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer Couch
Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle
Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes
Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table Telephone
ToothBrush Toys Trash_Can Webcam
"""
OFFICE_HOME = DomainFolder(
    {"Art": ("Art",), "Clipart": ("Clipart",), "Product": ("Product",), "Real": ("Real", "Real World", "RealWorld")},
    tuple(OFFICE_HOME_CLASSES.split()),
)
DOMAINNET = DomainFolder(
    {domain: (domain,) for domain in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")},
    ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra"),
)
DOMAIN_FOLDERS = {"pacs": PACS, "office-home": OFFICE_HOME, "domainnet": DOMAINNET}
