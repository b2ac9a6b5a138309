"""Studies that put what is proven beside what is seen. Functions take their scale as arguments and write nothing."""
