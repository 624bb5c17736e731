"""The messages between server and clients: a file per kind of question, the codec and the packer."""
