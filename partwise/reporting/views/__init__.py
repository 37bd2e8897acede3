"""What charts show, as plain numbers: the page, pictures for papers and notebooks draw the same views."""
