"""Commands around ``cdktf deploy``: bundle, adopt, outputs."""
