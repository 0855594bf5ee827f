"""`rocelab coll`: one collective over a range of sizes, as nccl-tests measures and prints it."""
