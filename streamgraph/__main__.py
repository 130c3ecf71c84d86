"""`python -m streamgraph` is the `streamgraph` command."""

from streamgraph.cli import main

if __name__ == "__main__":
    main()
