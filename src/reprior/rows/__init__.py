"""Target rows in blocks: how they are held, what a pass over them adds up, and eq. 8."""
