"""The console: a page that shows a pipeline as it is, and lets people act on it.

    browser ◄── page, code, drawings (`assets/`): the same for everybody, no data in them
       │  ▲
       ▼  │  one request, one answer; /api/events stays open
    http.py      connections, limits, headers      ► routes.py   who may, then what is answered
                                                         │
       ┌──────────────┬──────────────┬───────────────────┼──────────────────┐
    watching.py    history.py     actions.py          screens.py         audit.py
    what is now,   what was,      what people do:     state, log,        who did what
    once a second  in SQLite      `operations`        letters, shapes

It is a process of its own: whatever happens to it, capture and the lanes go on. What it shows it has from
the instance's `/status` and from the state directory, the same that `penstock status` shows; it computes
nothing that another part knows. What it does, it does by the functions that the command line calls."""
