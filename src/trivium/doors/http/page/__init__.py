"""The page at `/`: HTML, CSS and JavaScript without a build step, that talks to the server it came from."""
