"""What comes before, beside and after ``cdktf deploy``: bundle, adopt, outputs."""
