"""AWS's APIs as a node calls them."""
