"""What the files in a run's folder are called."""

CONFIG, ENVIRONMENT, METRICS = "config.toml", "environment.json", "metrics.jsonl"
CLIENTS, LEDGER, SUMMARY = "clients.csv", "ledger.json", "summary.json"
METHOD = "method-copy.py"  # of a method that is a file of the user's
FILES = (CONFIG, METHOD, ENVIRONMENT, METRICS, CLIENTS, LEDGER, SUMMARY)
MODELS, CHECKPOINTS = "models", "checkpoints"
