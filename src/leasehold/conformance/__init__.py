"""What a store must do, as cases that are written against the port alone.

    for case in cases_for(database):
        await case.run(Scene(one, other))

A case is a sentence that must be true. It takes a `Scene`: two processes with a database each, at
the same URL, so that what one does can come between two steps of the other. It uses names of its
own, so cases may share a database; but that should be a scratch database, because a case leaves
what it wrote. It raises `NotConforming` if the sentence is false.

Cases of what all scopes share run once for each scope that the database serves; those of a scope
that it does not serve are left out. A lease is made to expire by its duration, of one second: the
port has no way to make time pass, and a case waits for the state that follows, not for a time.

`scene` and `workers` have the parts, `suite` has the list, and one module has the cases of each
part of the port.
"""
