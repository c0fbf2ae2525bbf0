"""Reading: views of partitions, and the search over them. See DESIGN.md."""
