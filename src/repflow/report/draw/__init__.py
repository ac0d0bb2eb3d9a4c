"""Charts: what every figure of the page, of a paper and of a notebook is drawn with."""
