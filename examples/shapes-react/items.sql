CREATE TABLE items (
    id int PRIMARY KEY,
    title text NOT NULL,
    price numeric(8, 2) NOT NULL,
    done bool NOT NULL DEFAULT false
);
INSERT INTO items VALUES
    (1, 'Turbine shaft', 1299.00, false),
    (2, 'Guide vanes, set of 24', 880.50, true),
    (3, 'Bearing, upper', 412.00, false),
    (4, 'Seal ring', 38.90, false),
    (5, 'Governor oil, 20 l', 129.99, true);
