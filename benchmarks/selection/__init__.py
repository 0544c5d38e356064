"""What cohorts chosen by cost or data save, against lots and turns."""
