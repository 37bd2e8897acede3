"""The names of the files in a run's folder."""

CONFIG, ENVIRONMENT, METRICS, EVENTS = "config.toml", "environment.json", "metrics.jsonl", "events.jsonl"
CLIENTS, LEDGER, SUMMARY = "clients.csv", "ledger.json", "summary.json"
METHOD = "method-copy.py"  # of a method that is a file of the user's
NETWORK_COPY = "network-copy.py"  # of the file that the network is in
MODEL = "model.json"  # how the models are built and fed
SETUP, LEAVES = "setup.json", "leaves.json"  # who has and who shares what; what leaves a client
MODELS_FOLDER, CHECKPOINTS_FOLDER = "models", "checkpoints"
PLANES = "t-sne-"  # begins the name of a file of points, behind it stands that of the representation
