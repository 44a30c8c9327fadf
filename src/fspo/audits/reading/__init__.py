"""Tables of any trainer, file by file and batch by batch, as checked arrays by role."""
