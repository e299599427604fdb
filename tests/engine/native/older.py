"""What makes of this processor an older one."""

OTHERS = ("-mno-avx512vnni", "-mno-avx512f")
"""Options of the compiler."""
