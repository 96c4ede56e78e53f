"""What `benchmarks/load_server.py` measures, one module per subcommand, and what they share.

`server` starts a server and looks at it from outside, `client` asks it, `traffic` is what is asked, `report` says what
came of it.
"""
