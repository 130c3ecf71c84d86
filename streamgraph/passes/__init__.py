"""The planner's passes, in order: assign (lanes and issue order), sync (waits), lifetime (releases), emit (steps). Values in, one value
out."""
