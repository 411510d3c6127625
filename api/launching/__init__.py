"""Starting, watching and killing the processes of drivers."""
