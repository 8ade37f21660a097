"""The page at `/`: one HTML file that talks to the server it came from."""
