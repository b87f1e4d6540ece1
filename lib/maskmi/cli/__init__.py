"""The command line: what people do without a notebook. ``maskmi --help`` tells the rest.

Results go to the standard output, everything else to the standard error. Exit codes: 0 done, 1 refused or failed, with
one sentence, 2 wrong use, 130 interrupted. Torch and the models are imported where they are used, so that ``--help`` is
quick.
"""
