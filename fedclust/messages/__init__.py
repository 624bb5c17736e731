"""What server and clients say to each other: a file per kind of question, and the codec and the packer."""
