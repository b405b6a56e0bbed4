"""The tables of datasets: one module and one .sql file each."""
