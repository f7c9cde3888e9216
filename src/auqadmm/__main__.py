"""`python -m auqadmm` is the command `auqadmm`."""

from auqadmm.cli import main

if __name__ == "__main__":
    main()
