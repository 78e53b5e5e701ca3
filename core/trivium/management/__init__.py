"""What operators ask of a broker and do to it, whatever they ask by: nothing here knows HTTP."""
