"""Writing systems that don't separate words by spaces."""

UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf\U00011700-\U0001174f"  # Tai scripts
    "\u3005-\u3007\u3021-\u3029\u3031-\u303c\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff\U0001aff0-\U0001b16f"  # Kana
    "\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Characters of these writing systems, as ranges for a character class of a regular expression."""
