"""`python -m leasehold` is the command `leasehold`, where its script is not on the path."""

from leasehold.cli.main import app

if __name__ == "__main__":
    app()
