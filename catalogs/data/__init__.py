"""The shipped catalog files; every row carries its source and the date it was true."""
