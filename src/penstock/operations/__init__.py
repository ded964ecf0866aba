"""What people may ask of a pipeline beside syncing it, by the command line or by the console.

streams   pause, resume, load again; at once, or by an order if a run is at work on the state
lanes     who is given every change; pause, resume, rewind, load again, give up
letters   dead letters of the stream lanes: listed, shown, sent again, given up
shapes    of the live lane: listed, dropped

Nothing here prints or asks back. A function that returns has done what it says, or says what is yet to be
done.
"""
