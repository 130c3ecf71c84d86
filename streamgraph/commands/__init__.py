"""The commands of `streamgraph`, one module per group. Each parses, makes one library call, and reports.

    report     how a command speaks: the result on stdout, all else on stderr, or one JSON object
    command    what all commands share: options, help, errors and exit codes
    source     SPEC on the command line -> Program or Schedule
    start      init, doctor
    spec       check, expand, schema
    schedule   plan, draw
    explain    explain, diff
    figures    what a schedule needs, beside what one would write by hand
    run        run
    compare    compare
    bench      bench
    profile    profile: what each task costs, measured

At the top of these modules stand click and the standard library only, so that `--help` is quick; the rest is imported inside the commands.
"""
