"""From finished stages to tables: measurements (frame), statistics (stats), what is shown (layout, published), the table
(experiment), its foot (notes), formats (render)."""
