"""Tokens that break careless pictures."""

ODD = [
    "\n",
    "\t",
    "🎉",
    "$x^2$",
    "<b>&",
    "שלום",
    "مرحبا",
    "supercalifragilistic",
    "_a_",
    " ",
    "",
    "\x00",
    "\\frac",
    "ﷺ",
    "名",
]
