"""The data of the clients.

`sources` loads a data set, `stored` turns its columns into examples, `partition` deals them out,
`shifts` makes the groups of clients differ, and `client_data` puts these together into the data of
one client.
"""
