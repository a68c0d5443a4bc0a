"""From files, tables and archives to checked, split and decoded images."""
