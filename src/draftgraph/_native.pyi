"""The C++ core of DraftGraph. Absent where no compiler was found at installation: `draftgraph doctor` says so."""

def cpu_features() -> list[str]:
    """Returns the names of the vector extensions that this CPU and its operating system offer."""

def compiler() -> str:
    """Returns the compiler that built this extension, with its version."""
