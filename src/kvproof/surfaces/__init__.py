"""What people see: the command line, JSON documents, charts, the page. No figures of its own."""
