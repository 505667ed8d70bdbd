"""From finished stages to tables: measurements (frame), statistics (stats), what is shown and compares (layout,
published), the table (experiment), its foot (notes), formats (render)."""
