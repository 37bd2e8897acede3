"""Names for people, beside those of files and options: FedPer for `fedper`, LM received for `received`."""

PROPER = {
    "anti": "Anti",
    "apfl": "APFL",
    "central": "Central",
    "cfl": "CFL",
    "ditto": "Ditto",
    "dualfed": "DualFed",
    "fed3p2p": "Fed3+2p",
    "fedala": "FedALA",
    "fedamp": "FedAMP",
    "fedavg": "FedAvg",
    "fedbabu": "FedBABU",
    "fedbn": "FedBN",
    "fedclust": "FedClust",
    "feddyn": "FedDyn",
    "fedetf": "FedETF",
    "fedfcd": "FedFCD",
    "fedfomo": "FedFomo",
    "fedgh": "FedGH",
    "fedpac": "FedPAC",
    "fedper": "FedPer",
    "fedproto": "FedProto",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "fedrod": "FedRoD",
    "fedtc": "FedTC",
    "gpfl": "GPFL",
    "lg_fedavg": "LG-FedAvg",
    "local": "Local",
    "moon": "MOON",
    "pacfl": "PACFL",
    "per_fedavg": "Per-FedAvg",
    "pfedme": "pFedMe",
    "scaffold": "SCAFFOLD",
    "spherefed": "SphereFed",
    "vanilla": "Vanilla",
}
LM = "LM: each client's own (local) model on its own test samples"
WHICH_MODEL = (
    f"{LM}; GM: the global model on all test samples; GM/client: "
    "the same model on the clients' own test samples together, which differs from GM only where those are other samples"
)


def proper(label: str) -> str:
    """Return the label of a row, `fedper lr=0.1` say, with the proper name of its method."""
    method, *rest = label.split(" ")
    return " ".join([PROPER.get(method, method), *rest])


def model_at(moment: str) -> str:
    """Return which model a moment tests: LM, a client's, at that moment, or GM, the global one."""
    return "GM" if moment == "global" else f"LM {moment}"


def capital(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
