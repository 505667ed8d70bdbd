"""From finished stages to tables: measurements (frame), statistics (stats), layout (table), formats (render)."""
