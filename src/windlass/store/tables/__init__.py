"""The tables of the kernel: one module and one .sql file each."""
