"""The messages between server and clients: a file per kind of question, replies, the codec and the packer."""
