"""What a store must do, as cases that are written against the port alone.

A case is a sentence that must be true. It takes a `Scene`: two processes with a database each, at
the same URL, so that what one does can come between two steps of the other. It uses names of its
own, so cases may share a database; but that should be a scratch database, because a case leaves
what it wrote. It raises `NotConforming` if the sentence is false.

`scene` has the parts, and one module has the cases of each part of the port.
"""
