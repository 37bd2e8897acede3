"""The kinds of a user's own data, as help and refusals list them; without torch, numpy and pandas."""

OWN_KINDS = {
    "FILE.csv, FILE.parquet": "a table: --label names the column to predict, --partition column:NAME the clients",
    "FILE.rds, FILE.rda#NAME": "a table that R saved; NAME chooses among several data frames",
    "FOLDER of such files": "a table for each client, which is called as its file is",
    "FILE.npz": "arrays x and y",
    "FOLDER with train/0.npz ...": "arrays x and y of each client, and its test set in test/0.npz; PFLlib's files",
    "FOLDER or FILE.zip of images": "class/image, or domain/class/image with a client for each domain",
    "FOLDER or FILE.zip with images and masks": "images/NAME and masks/NAME.png, or both in a folder for each client",
    "hf:NAME": "a data set of Hugging Face",
}
